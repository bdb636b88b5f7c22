select unnest(procrastinate_defer_jobs_v1(array[
    row('coder', 'task_request', 0, null, null, :payload::jsonb, null)::procrastinate_job_to_defer_v1
]));
select id, args from procrastinate_fetch_job_v2(array['coder']::varchar[], 1 + :client_id)
\gset
select procrastinate_finish_job_v1(:id, 'succeeded', false);
