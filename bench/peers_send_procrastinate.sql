select unnest(procrastinate_defer_jobs_v1(array[
    row('coder', 'task_request', 0, null, null, :payload::jsonb, null)::procrastinate_job_to_defer_v1
]));
