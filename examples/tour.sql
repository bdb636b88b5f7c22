-- A tour of CALIBER, run by `make run`. By hand, in a database that has the extension:
--
--   psql -X -q -v ON_ERROR_STOP=1 -f examples/tour.sql
--
-- It registers agents of its own, so give it a fresh database. psql prints every line from
-- "set ECHO" on, with its comments, and then what it returned. Ids and the cursor are kept in
-- psql variables by \gset and never shown, so that every run prints the same.

\set VERBOSITY terse
\pset footer off
\pset null '-'
\set trajectory '00000000-0000-7000-8000-000000000001'
\set ECHO all

--
-- === 1. Two agents register ===
-- An agent has a type, capabilities and a name. Registering returns its id; psql keeps it.
select caliber_agent_register('planner', '{planning}', can_delegate_to => '{coder}', name => 'ada') as ada
\gset
select caliber_agent_register('coder', '{sql,python}', name => 'bob', model => 'any-model') as bob
\gset

--
-- === 2. A heartbeat ===
-- A beat says that the agent lives. Counters are added up; the call returns the status.
select caliber_agent_heartbeat(:'bob', 'reading the schema', turns => 1, tokens => 1200) as status;
select caliber_agent_heartbeat(:'bob', progress => 0.25, turns => 1, tokens => 800, last_tool => 'grep') as status;

-- The view caliber_agents shows everybody, and what two beats have added up to.
select name, agent_type, team, status, liveness, activity, progress, turns, tokens, last_tool
from caliber_agents
order by name;

--
-- === 3. Work: assign, wait, release ===
-- Assigning a trajectory makes an agent active; assigning the same again changes nothing.
select caliber_agent_assign_trajectory(:'bob', :'trajectory') as changed;
select caliber_agent_assign_trajectory(:'bob', :'trajectory') as changed;

-- set_status returns the status before.
select caliber_agent_set_status(:'bob', 'waiting', 'needs a review') as before;

-- A step that makes no sense is refused: who has work is not idle. Clients see KA007.
\set ON_ERROR_STOP off
select caliber_agent_set_status(:'bob', 'idle');
\set ON_ERROR_STOP on
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Releasing is how work ends.
select caliber_agent_release(:'bob') as changed;
select name, status, current_trajectory_id from caliber_agents where name = 'bob';

--
-- === 4. An agent spawns another ===
-- The child joins its team, reports to its parent, and cannot be given more than the parent has.
select caliber_agent_spawn(:'ada', 'coder', '{sql}', name => 'cyd') as cyd
\gset
select c.name, c.status, c.spawn_depth, p.name as parent, c.can_delegate_to
from caliber_agents as c
join caliber_agents as p on c.parent_id = p.agent_id;

--
-- === 5. A new process takes over ===
-- bob crashes and starts again. The new process calls resume and gets the next incarnation.
select caliber_agent_resume(:'bob') as incarnation;
select caliber_agent_heartbeat(:'bob', 'back again', incarnation => 2) as status;

-- The old process was only asleep. It still shows incarnation 1 and is refused.
\set ON_ERROR_STOP off
select caliber_agent_heartbeat(:'bob', 'still here?', incarnation => 1);
\set ON_ERROR_STOP on
\echo SQLSTATE :LAST_ERROR_SQLSTATE

--
-- === 6. Who is alive ===
-- Nothing runs in the background: liveness is judged when read, from the last beat.
-- So as not to wait here, a superuser moves two beats into the past.
update caliber_agent_beat set beat_at = beat_at - interval '20 seconds' where agent_id = :'ada';
update caliber_agent_beat set beat_at = beat_at - interval '2 minutes' where agent_id = :'cyd';
select name, liveness, suspect_after, unavailable_after
from caliber_agent_liveness
order by name;

-- One beat, and ada is alive again.
select caliber_agent_heartbeat(:'ada') as status;
select name, liveness from caliber_agent_list(team => 'default', liveness => 'alive') order by name;

--
-- === 7. Settings ===
-- With a beat expected once a minute, two minutes of silence are not yet suspect.
select caliber_config_get('heartbeat_interval_ms') as beat_ms;
select caliber_config_set('heartbeat_interval_ms', '60000') as beat_ms;
select name, liveness, suspect_after from caliber_agent_liveness where name = 'cyd';
select caliber_config_reset('heartbeat_interval_ms') as beat_ms;

-- A value that does not fit is refused.
\set ON_ERROR_STOP off
select caliber_config_set('heartbeat_interval_ms', 'soon');
\set ON_ERROR_STOP on

--
-- === 8. What happened ===
-- Every change but the beats left an event. A reader keeps a cursor and asks for what came after.
select severity, event_type, summary from caliber_events_since(null, 4);
select next_cursor as here from caliber_events_since(null, 4) offset 3
\gset
select severity, event_type, summary from caliber_events_since(:'here');

--
-- === 9. Messages ===
-- Ada asks bob, and any coder; bob takes both, the urgent one first, and has 30 seconds for them.
select caliber_message_send(:'ada', :'bob', null, 'info_request', '{"table": "orders"}',
    subject => 'Which index?', requires_response => true) as question
\gset
select caliber_message_send(:'ada', null, 'coder', 'task_request', priority => 'high') as task
\gset
select message_type, priority, subject, payload, attempts from caliber_message_receive(:'bob');

-- He answers one, cannot do the other, and says so; it comes again after a pause.
select caliber_message_reply(:'bob', :'question', '{"index": "orders_date_idx"}') is not null as replied;
select caliber_message_acknowledge(:'question') as acknowledged;
select caliber_message_reject(:'task', 'no such branch') as status;
select sender, recipient, message_type, status, subject, payload from caliber_messages order by message_id;
select caliber_message_prompt(message_id) as prompt from caliber_message_inbox(:'ada');

--
-- === 10. The end ===
-- Terminating is for good. With descendants, cyd ends with ada; the call returns how many did.
select caliber_agent_terminate(:'ada', 'the plan is done', descendants => true) as ended;
select name, status, liveness, status_reason from caliber_agents order by name;
