-- Config: caliber_config shows every key, caliber_config_set and _reset change one.
-- A subsystem's keys stand here together; adding one is adding a row.

create function @extschema@._caliber_config_key()
returns table (
    key text,
    type text,
    default_value text,
    minimum bigint,
    maximum bigint,
    choices text[],
    description text
)
language sql
immutable
parallel safe
rows 20
begin atomic
    select * from (
        values
        (
            'heartbeat_interval_ms', 'integer', '5000', 100, 3600000, null::text[],
            'How often an agent is expected to beat, unless it registered its own interval.'
        ),
        (
            'heartbeat_missed_limit', 'integer', '3', 1, 1000, null,
            'Beats missed in a row before an agent is suspect.'
        ),
        (
            'agent_unavailable_ms', 'integer', '30000', 1000, 86400000, null,
            'Silence after which an agent is unavailable; never less than twice the time to suspect.'
        ),
        (
            'agent_max_concurrent_tasks', 'integer', '5', 1, 10000, null,
            'How many tasks an agent may have at once, unless it registered its own limit.'
        ),
        (
            'agent_reap', 'boolean', 'on', null, null, null,
            'Whether caliber_tick reaps agents that are unavailable; to be off where agents do not beat.'
        ),
        (
            'agent_spawn_depth', 'integer', '8', 0, 100, null,
            'How deep agents may spawn agents: 0 allows none.'
        ),
        (
            'event_level', 'choice', 'info', null, null,
            array['debug', 'info', 'warning', 'error', 'critical'],
            'Events below this severity are not recorded.'
        ),
        (
            'event_notify', 'boolean', 'on', null, null, null,
            'Whether recording an event notifies the channel caliber_event.'
        ),
        (
            'event_retention_days', 'integer', '90', 1, 36500, null,
            'Age in days after which caliber_event_purge may delete an event.'
        ),
        (
            'notify_mode', 'choice', 'always', null, null, array['always', 'armed', 'off'],
            'When a message wakes its reader: always, only a reader that sleeps (armed), or never.'
        ),
        (
            'message_queue_limit', 'integer', '1000', 0, 1000000, null,
            'Messages that may wait in one queue before sending to it fails; 0 is no limit.'
        ),
        (
            'message_max_retries', 'integer', '2', 0, 100, null,
            'How often a message is tried again before it is dead.'
        ),
        (
            'message_retry_ms', 'integer', '1000', 0, 3600000, null,
            'Pause after a first rejection; it doubles with each further one, up to an hour.'
        ),
        (
            'message_retention_hours', 'integer', '24', 0, 876000, null,
            'How long a message is kept after it was processed.'
        ),
        (
            'dead_letter_retention_days', 'integer', '30', 1, 36500, null,
            'How long a dead message is kept.'
        ),
        (
            'delegation_max_depth', 'integer', '3', 1, 20, null,
            'How deep tasks may be delegated: 3 is A to B to C to D.'
        ),
        (
            'delegation_max_tokens', 'integer', '4000', 1, 1000000000, null,
            'Tokens a task may use, unless it was given its own limit.'
        ),
        (
            'delegation_max_tool_calls', 'integer', '10', 0, 1000000, null,
            'Tool calls a task may make, unless it was given its own limit.'
        ),
        (
            'delegation_timeout_seconds', 'integer', '120', 1, 2592000, null,
            'How long an attempt at a task may take, unless it was given its own limit.'
        ),
        (
            'delegation_max_retries', 'integer', '2', 0, 100, null,
            'How often a task is tried again before it is dead, unless it was given its own limit.'
        ),
        (
            'delegation_to_silent', 'boolean', 'off', null, null, null,
            'Whether a task may be given to an agent that has not beaten for so long that it is unavailable.'
        ),
        (
            'shard_number', 'integer', null, 0, 1023, null,
            'Written into the last 10 bits of new ids; unset leaves them random.'
        ),
        (
            'search_exact_rows', 'integer', '1000', 0, 1000000, null,
            'Search by embedding compares every row while no more than this can match; beyond that it takes the index.'
        ),
        (
            'token_estimator', 'function', null, null, null, null,
            'Counts the tokens of what is written without a count: a superuser''s function; unset is 4 bytes a token.'
        ),
        (
            'context_retention_days', 'integer', '90', 1, 36500, null,
            'Age in days after which caliber_context_purge may delete a context.'
        ),
        (
            'state_notify', 'boolean', 'on', null, null, null,
            'Whether a change of the shared state notifies the channel caliber_state.'
        ),
        (
            'state_retention_days', 'integer', '90', 1, 36500, null,
            'Age in days after which caliber_state_purge may delete a version that is not current.'
        ),
        (
            'token_max_hold_seconds', 'integer', '1800', 1, 86400, null,
            'How long a turn with an execution token lasts at most.'
        ),
        (
            'token_claim_seconds', 'integer', '60', 1, 3600, null,
            'How long an agent that is handed a token has to claim it before it is passed over.'
        ),
        (
            'conflict_similarity', 'number', '0.85', 0, 1, null,
            'Facts more alike than this whose texts differ are candidates for a conflict.'
        ),
        (
            'contradiction_similarity', 'number', '0.5', 0, 1, null,
            'Facts at least so alike are contradictions when their texts say so.'
        ),
        (
            'contradiction_score', 'number', '0.4', 0, 1, null,
            'Evidence of the texts from which on a pair is a contradiction.'
        ),
        (
            'conflict_confidence_margin', 'number', '0.1', 0, 1, null,
            'Confidences closer to each other than this do not decide a conflict; it is escalated.'
        ),
        (
            'conflict_max_pairs', 'integer', '100000', 100, 10000000, null,
            'Pairs that one call of caliber_detect_conflicts judges; the next call goes on.'
        ),
        (
            'conflict_cache_mb', 'integer', '16', 0, 4096, null,
            'Memory a session keeps between two calls of caliber_detect_conflicts, to read no embedding twice.'
        ),
        (
            'audit_retention_days', 'integer', '90', 90, 36500, null,
            'Age in days after which caliber_audit_purge may delete a record of a handoff.'
        ),
        (
            'audit_escalation_retention_days', 'integer', '180', 180, 36500, null,
            'The same for a record of an escalation.'
        ),
        (
            'audit_closure_days', 'integer', '30', 30, 36500, null,
            'Days that a trajectory must have been finished before its records may be deleted.'
        ),
        (
            'handoff_ack_ms', 'integer', '30000', 100, 86400000, null,
            'How long a handoff waits for an answer, unless its sender says otherwise.'
        ),
        (
            'handoff_reminder_ms', 'integer', '30000', 0, 86400000, null,
            'How long the receiver of a handoff has after it was reminded.'
        )
    ) as known (key, type, default_value, minimum, maximum, choices, description);
end;

comment on function @extschema@._caliber_config_key() is
'Every key that may be set, with its type, range, default and description.';

create view @extschema@.caliber_config with (security_invoker = true) as
select
    k.key,
    coalesce(s.value, k.default_value) as value,
    k.default_value,
    k.type,
    coalesce(
        pg_catalog.array_to_string(k.choices, ' | '),
        k.minimum || ' to ' || k.maximum,
        case k.type when 'function' then 'f(text) returning integer' else 'on | off' end
    ) as allowed,
    k.description,
    s.set_at,
    s.set_by
from @extschema@._caliber_config_key() as k
left join @extschema@.caliber_setting as s on k.key = s.key
order by k.key;

comment on view @extschema@.caliber_config is
'Every setting: its value, default, type, allowed values, what it does, and who set it when.';

create function @extschema@._caliber_config_value(wanted text)
returns text
language sql
stable
parallel safe
begin atomic
    select coalesce(
        (select s.value from @extschema@.caliber_setting as s where s.key = wanted),
        (select k.default_value from @extschema@._caliber_config_key() as k where k.key = wanted)
    );
end;

comment on function @extschema@._caliber_config_value(text) is
'The value of a setting, its default where nobody set it; for use inside the extension.';

create function @extschema@.caliber_config_get(key text)
returns text
language plpython3u
stable
security definer
set search_path = pg_catalog, pg_temp
as $python$ @config.get_value@ $python$;

comment on function @extschema@.caliber_config_get(text) is
'The value of a setting as text, its default where nobody set it. 22023 for an unknown key.';

create function @extschema@.caliber_config_set(
    key text,
    value text
)
returns text
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @config.set_value@ $python$;

comment on function @extschema@.caliber_config_set(text, text) is
'Sets a setting for the whole database and returns it as stored. Admins only; 22023 for an unknown key or a value that does not fit.';

create function @extschema@.caliber_config_reset(key text)
returns text
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @config.reset_value@ $python$;

comment on function @extschema@.caliber_config_reset(text) is
'Puts a setting back to its default and returns that. Admins only; 22023 for an unknown key.';

grant select on @extschema@.caliber_setting, @extschema@.caliber_config
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@._caliber_config_key(),
    @extschema@._caliber_config_value(text),
    @extschema@.caliber_config_get(text)
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_config_set(text, text),
    @extschema@.caliber_config_reset(text)
to caliber_admin;
