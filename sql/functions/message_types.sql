-- Message types and schemas: the built-in ones, and adding more. The contract is in
-- schema/message_types.sql.

-- Here and not in the schema file, so that an upgrade brings the new ones too.
insert into @extschema@.caliber_message_type (topic, message_type, description, built_in)
select
    known.topic,
    known.message_type,
    known.description,
    true
from (
    values
    ('delegation', 'task_delegation', 'Do this task'),
    ('delegation', 'task_result', 'Here is what came of it'),
    ('context', 'context_request', 'Tell me what you know'),
    ('context', 'context_share', 'Here is what I know'),
    ('coordination', 'coordination_signal', 'Something you wait for happened'),
    ('handoff', 'handoff', 'The work is yours now'),
    ('control', 'interrupt', 'Stop and look at this'),
    ('control', 'heartbeat', 'I am alive'),
    ('task', 'task_assignment', 'This task is yours'),
    ('task', 'task_accepted', 'I take the task'),
    ('task', 'task_rejected', 'I do not take the task'),
    ('task', 'task_started', 'I have begun'),
    ('task', 'task_progress', 'This is how far I am'),
    ('task', 'task_complete', 'The task is done'),
    ('task', 'task_blocked', 'I cannot go on'),
    ('task', 'task_failed', 'The task has failed'),
    ('review', 'submit_for_review', 'Please review this'),
    ('review', 'review_feedback', 'This is what I found'),
    ('review', 'review_approved', 'It is good'),
    ('review', 'review_rejected', 'It is not good'),
    ('review', 'revision_requested', 'Please change this'),
    ('token', 'request_token', 'May I have the token'),
    ('token', 'token_granted', 'You have the token'),
    ('token', 'token_denied', 'You do not get the token'),
    ('token', 'token_released', 'The token is free'),
    ('file', 'request_file_lock', 'May I lock the file'),
    ('file', 'file_lock_granted', 'You have the lock'),
    ('file', 'file_lock_denied', 'You do not get the lock'),
    ('file', 'file_lock_released', 'The file is free'),
    ('clarification', 'request_clarification', 'What do you mean'),
    ('clarification', 'provide_clarification', 'This is what I mean'),
    ('clarification', 'request_input', 'I need this from you'),
    ('clarification', 'provide_input', 'Here is what you need'),
    ('control', 'nudge', 'Are you still at it'),
    ('control', 'halt', 'Stop for now'),
    ('control', 'resume', 'Go on'),
    ('control', 'terminate', 'End yourself'),
    ('control', 'escalate', 'This is above me'),
    ('broadcast', 'state_changed', 'Shared state has changed'),
    ('broadcast', 'file_modified', 'A file has changed'),
    ('broadcast', 'test_result', 'Tests have run'),
    ('broadcast', 'error_occurred', 'Something went wrong'),
    ('task', 'task_request', 'Can you do this for me'),
    ('task', 'task_status', 'Working on it, or blocked'),
    ('info', 'info_request', 'What do you know about this'),
    ('info', 'info_response', 'This is what I know'),
    ('info', 'notification', 'For your information'),
    ('collaboration', 'collab_invite', 'Join this collaboration'),
    ('collaboration', 'collab_update', 'This is where the collaboration stands'),
    ('handoff', 'handoff_request', 'Can you take this over'),
    ('info', 'feedback', 'This is what I think of your work')
) as known (topic, message_type, description)
-- One that an admin had added becomes ours; a dump must not carry it a second time.
on conflict (message_type) do update set built_in = true, added_at = null;

insert into @extschema@.caliber_message_schema (schema_name, version, description, json_schema, built_in)
values
(
    'plaintext', 1, 'Text.',
    '{"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}',
    true
),
(
    'structured_critique', 1, 'Issues found in some work, and notes in Markdown.',
    '{"type": "object", "required": ["issues", "notes_md"],
      "properties": {"issues": {"type": "array", "items": {"type": "object"}}, "notes_md": {"type": "string"}}}',
    true
),
(
    'structured_grade', 1, 'How complete and how correct some work is, 0 to 1.',
    '{"type": "object", "required": ["recall", "precision"],
      "properties": {"recall": {"type": "number", "minimum": 0, "maximum": 1},
                     "precision": {"type": "number", "minimum": 0, "maximum": 1}}}',
    true
)
on conflict (schema_name, version) do nothing;

-- Of a type's queue in a team. Nothing stores it: who knows team and type knows the queue. Not
-- declared immutable, which convert_to is not: it would not be inlined.
create function @extschema@._caliber_type_queue(
    team_id uuid,
    agent_type text
)
returns uuid
language sql
stable
parallel safe
return pg_catalog.encode(
    pg_catalog.substr(pg_catalog.sha256(pg_catalog.convert_to(team_id::text || agent_type, 'UTF8')), 1, 16),
    'hex'
)::uuid;

comment on function @extschema@._caliber_type_queue(uuid, text) is
'The id of the queue from which the agents of a type take, in a team.';

create function @extschema@._caliber_my_type_queue()
returns uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select @extschema@._caliber_type_queue(a.team_id, a.agent_type)
    from @extschema@.caliber_agent as a
    where a.login_role = @extschema@._caliber_actor() and a.terminated_at is null;
end;

comment on function @extschema@._caliber_my_type_queue() is
'The queue of the type of the agent whose login is calling; null for anybody else.';

grant execute on function
    @extschema@._caliber_type_queue(uuid, text),
    @extschema@._caliber_my_type_queue()
to caliber_admin, caliber_agent, caliber_observer;

create function @extschema@.caliber_message_type_add(
    message_type text,
    description text default '',
    topic text default 'custom'
)
returns boolean
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @message_types.add_type@ $python$;

comment on function @extschema@.caliber_message_type_add(text, text, text) is
'Adds a message type; false when there is one of that name. Admins only.';

create function @extschema@.caliber_message_schema_register(
    schema_name text,
    json_schema jsonb,
    description text default ''
)
returns integer
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @message_types.register_schema@ $python$;

comment on function @extschema@.caliber_message_schema_register(text, jsonb, text) is
'Registers a JSON Schema for payloads and returns its version; the same schema again keeps its version. Admins only; 22023 for one that is not valid or whose cost has no bound, KA008 without python3-jsonschema.';

grant select on @extschema@.caliber_message_type, @extschema@.caliber_message_schema
to caliber_admin, caliber_agent, caliber_observer;
grant execute on function
    @extschema@.caliber_message_type_add(text, text, text),
    @extschema@.caliber_message_schema_register(text, jsonb, text)
to caliber_admin;
