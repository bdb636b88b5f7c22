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
-- A trajectory is a piece of work. Assigning it makes an agent active; again changes nothing.
select caliber_trajectory_start('port the billing module', :'bob') as trajectory
\gset
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

-- Spawning gave ada every right on cyd. She passes one on to bob.
select caliber_grant_access(:'cyd', :'bob', 'read_transcript', :'ada') as given;
select grantee, capability, target, given_by from caliber_grant_list(:'cyd') order by grantee, capability;

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
-- === 10. An agent ends ===
-- Terminating is for good. With descendants, cyd ends with ada; the call returns how many did.
select caliber_agent_terminate(:'ada', 'the plan is done', descendants => true) as ended;
select name, status, liveness, status_reason from caliber_agents order by name;

--
-- === 11. Shared state ===
-- A key is set for the whole team. Each write is a version, and set returns its number.
select caliber_state_set('build', 'status', '{"step": "compile"}') as version;
select namespace, key, value, version from caliber_state_get('build', 'status');

-- Two agents have read version 1. The first to write wins; the second gets no version, and what
-- the first wrote is not lost: it reads again and decides anew.
select caliber_state_set('build', 'status', '{"step": "test"}', 1) as version;
select caliber_state_set('build', 'status', '{"step": "lint"}', 1) as version;

-- A key may have a type, which later writes must fit.
select caliber_state_set('build', 'failures', '0', value_type => 'integer', agent_id => :'bob') as version;
\set ON_ERROR_STOP off
select caliber_state_set('build', 'failures', '"none"');
\set ON_ERROR_STOP on

-- Deleting is a version too; the history shows every one.
select caliber_state_delete('build', 'status') as version;
select version, deleted, value from caliber_state_history('build', 'status');
select key, value, value_type from caliber_state_list('build', 'f');

--
-- === 12. Turns ===
-- eve writes, bob reviews, one at a time. bob stands in line and is handed the turn on release.
select caliber_agent_register('writer', name => 'eve') as eve
\gset
select granted, turn, place from caliber_token_request(:'eve', 'producer_critic', 'chapter-1');
select granted, turn, place from caliber_token_request(:'bob', 'producer_critic', 'chapter-1');
select status, holder, waiting from caliber_token_status('producer_critic', 'chapter-1');
select caliber_token_release(:'eve', 'producer_critic', 'chapter-1', turn => 1) as released;
select granted, turn, place from caliber_token_request(:'bob', 'producer_critic', 'chapter-1');

-- eve releases once more, with the number of its turn that is over: bob keeps his.
select caliber_token_release(:'eve', 'producer_critic', 'chapter-1', turn => 1) as released;
select status, holder, turn from caliber_token_status('producer_critic', 'chapter-1');

--
-- === 13. Checkpoints ===
-- What bob did in his turn, how far he came and the end of the turn are one transaction.
begin;
select caliber_token_guard(:'bob', 'producer_critic', 'chapter-1', turn => 2) > now() as still_my_turn;
select caliber_state_set('build', 'failures', '2', 1, :'bob') as version;
select caliber_checkpoint_save(:'bob', 'state_committed', 'build/failures', '{"reviewed": 7}') is not null as saved;
select caliber_token_release(:'bob', 'producer_critic', 'chapter-1', turn => 2) as released;
commit;

-- After a crash, the process that takes over goes on from there.
select checkpoint_type, reference_id, agent_state, incarnation from caliber_checkpoint_latest(:'bob');

--
-- === 14. Locks ===
-- bob and dan edit the same files. A lock is a lease with a fence, a number that only rises;
-- several are taken all or none, and a directory covers what is below it.
select caliber_agent_register('coder', name => 'dan') as dan
\gset
select resource_id, mode, fence from caliber_lock_acquire_many(:'bob', 'file', '{src/auth/,README.md}');
select caliber_lock_acquire(:'dan', 'file', 'src/auth/login.py') is not null as got_it;
select a.name, l.resource_id, l.fence from caliber_lock_list(resource_id => 'src/auth/login.py') as l
join caliber_agents as a on a.agent_id = l.holder_agent_id;

-- A lease is not enough: bob may sleep past its end. So a write shows its fence to a guard, in
-- the transaction of the write.
create temporary table page (title text primary key, body text);
insert into page values ('README', '-');
begin;
select caliber_lock_guard('file', 'README.md', 1) is not null as lease_runs;
update page set body = 'by bob';
commit;

-- bob sleeps too long (a superuser moves the end into the past), dan takes over and writes.
update caliber_resource set expires_at = clock_timestamp() where holder_agent_id = :'bob';
select fence from caliber_lock_acquire_many(:'dan', 'file', '{README.md}');
begin;
select caliber_lock_guard('file', 'README.md', 2) is not null as lease_runs;
update page set body = 'by dan';
commit;

-- bob wakes up and writes. His fence is old, and the transaction comes to nothing.
\set ON_ERROR_STOP off
begin;
select caliber_lock_guard('file', 'README.md', 1);
update page set body = 'by bob, who overslept';
commit;
\set ON_ERROR_STOP on
select body from page;
select caliber_lock_release_all(:'dan') as released;

--
-- === 15. Shared memory ===
-- A region keeps values by key. eve's is a team region: dan is of her team, so he may write too.
select caliber_region_create(:'eve', 'team', 'plan', conflict_resolution => 'reject') as plan
\gset
select outcome, version from caliber_region_put(:'eve', :'plan', 'status', '{"build": "red"}');

-- Both read version 1. dan is faster; eve's write is refused and she is told what stands.
select outcome, version from caliber_region_put(:'dan', :'plan', 'status', '{"build": "green"}', 1);
select outcome, version, current_value from caliber_region_put(:'eve', :'plan', 'status', '{"build": "amber"}', 1);

-- No update is lost, every version is kept, and the conflict is on record.
select key, version, value from caliber_region_history(:'dan', :'plan');
select key, seen_version, found_version, conflict_resolution, outcome from caliber_region_conflict;

-- Under merge both changes stand: dan's of one key, eve's of another.
select caliber_region_create(:'eve', 'collaborative', 'board', conflict_resolution => 'merge') as board
\gset
select outcome, version from caliber_region_put(:'eve', :'board', 'todo', '{"docs": "open", "tests": "open"}', 0);
select outcome, version from caliber_region_put(:'dan', :'board', 'todo', '{"docs": "open", "tests": "done"}', 1);
select outcome, version, current_value
from caliber_region_put(:'eve', :'board', 'todo', '{"docs": "done", "tests": "open"}', 1);

-- A private region is eve's alone, until she lists a reader.
select caliber_region_create(:'eve', 'private', 'diary') as diary
\gset
select outcome from caliber_region_put(:'eve', :'diary', 'today', '"dan is fast"');
\set ON_ERROR_STOP off
select * from caliber_region_get(:'dan', :'diary');
\set ON_ERROR_STOP on
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select caliber_region_grant(:'diary', :'dan', 'read') as changed;
select key, value, version from caliber_region_get(:'dan', :'diary');
select name, region_type, owner, readers, conflict_resolution, keys, writes, conflicts from caliber_regions order by created_at;

-- What can dan reach, and why? And may he write the diary?
select memory_type, name, belongs_to, reads_because, writes_because from caliber_reach(:'dan', 'region');
select caliber_check_access(:'dan', 'region', :'diary', 'write') as may_write;

--
-- === 16. Memory ===
-- bob's trajectory is still open, in its first scope. Turns are numbered in the scope; a fact and
-- a decision come out of it. Embeddings come from a model of yours; these have 3 dimensions.
select scope_id as scope from caliber_scope_current(:'trajectory')
\gset
select caliber_turn_add(:'scope', 'user', 'How often may the upload be retried?') as turn;
select caliber_turn_add(:'scope', 'assistant', 'Three times, the client gives up then.') as turn;
select caliber_artifact_create(:'scope', null, 'fact', 'Uploads are retried three times.',
    embedding => '[0.9, 0.1, 0]', confidence => 0.8) as three
\gset
select caliber_artifact_create(:'scope', null, 'design_decision', 'Retries are counted in the database.',
    embedding => '[0.6, 0, 0.8]') is not null as kept;

-- What turns out wrong is not changed but superseded.
select caliber_artifact_create(:'scope', null, 'fact', 'Uploads are retried five times.',
    embedding => '[0.9, 0.2, 0]', confidence => 0.95) as five
\gset
select caliber_artifact_supersede(:'three', :'five', 'read in the source') as superseded;
\set ON_ERROR_STOP off
select caliber_artifact_supersede(:'five', :'three');
\set ON_ERROR_STOP on
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Search by embedding, by words, or by both.
select kind, type, content, round(similarity::numeric, 2) as similarity
from caliber_search(embedding => '[1, 0, 0]');
select kind, type, content from caliber_search('retries database');

-- eve does a part of the work, in a trajectory of her own below bob's.
select caliber_trajectory_start('test the retries', :'eve', :'trajectory') as part
\gset
select caliber_trajectory_finish(:'part', 'completed', 'all green') as before;
select tree, status, agent, scopes, turns, outcome from caliber_trajectory_tree;

-- What bob has to read before he goes on, within 200 tokens; stored with its hash for good.
select caliber_note_add(:'eve', 'handoff', 'Retries are tested; uploads over 1 GB are not.', :'trajectory') is not null as noted;
select context_id as context from caliber_context_assemble(:'trajectory', 200)
\gset
select content from caliber_context where context_id = :'context';
select section, decision, reason, items, token_count from caliber_context_trace where context_id = :'context';

-- === 17. Conflicts ===
-- Before a fact is written, one can ask what it would contradict; nothing is kept by that.
select verdict, round(similarity::numeric, 2) as similarity, evidence, known_content
from caliber_check_fact(:'trajectory', 'Uploads are never retried.', '[0.8, 0.3, 0]');
select caliber_artifact_create(:'scope', null, 'fact', 'Uploads are never retried.',
    embedding => '[0.8, 0.3, 0]', confidence => 0.6) is not null as kept;

-- Facts are compared with facts, decisions with decisions. Each pair is found once.
select conflict_id as conflict from caliber_detect_conflicts(:'trajectory')
\gset
select count(*) as more from caliber_detect_conflicts(:'trajectory');
select content_a, content_b, evidence, confidence_a, confidence_b from caliber_conflict_list();

-- Deciding it supersedes what lost.
select status, winner, reason from caliber_resolve_conflict(:'conflict', 'highest_confidence');
select content, status from caliber_artifact where trajectory_id = :'trajectory' and artifact_type = 'fact'
order by created_at;

-- === 18. Delegation ===
-- A security audit: kyra has luke review the code and ada read the logs, both at once. The first
-- has a budget for itself and everything that is passed on of it.
select caliber_team_create('audit') is not null as created;
select caliber_agent_register('general', can_delegate_to => array['code', 'data'], team => 'audit', name => 'kyra') as kyra
\gset
select caliber_agent_register('code', can_delegate_to => array['data'], team => 'audit', name => 'luke') as luke
\gset
select caliber_agent_register('data', team => 'audit', name => 'ada') as ada_of_data
\gset
select caliber_trajectory_start('security audit', :'kyra') as audit
\gset
select caliber_delegate_task(:'kyra', 'code', 'Review src/auth/: password hashing, JWT, API keys, rate limits.', :'audit',
    task_type => 'review', title => 'Review auth module code quality', budget_tokens => 8000) as review
\gset
select caliber_delegate_task(:'kyra', 'data', 'Look for brute force, unusual times and places, token reuse.', :'audit',
    task_type => 'analyze', title => 'Analyze authentication logs') as logs
\gset

-- Each task is taken by one. luke gets a trajectory for his; on it he passes a part on.
select caliber_accept_delegation(:'review', :'luke') as work
\gset
select caliber_accept_delegation(:'logs', :'ada_of_data') is not null as taken;
select status, tokens_left, tool_calls_left, budget_tokens_left
from caliber_progress_delegation(:'review', tokens => 1500, tool_calls => 4, progress => 0.4);
select caliber_delegate_task(:'luke', 'data', 'Run test coverage on src/auth/.', :'work') as coverage
\gset
select caliber_accept_delegation(:'coverage', :'ada_of_data') is not null as taken;

-- ada may delegate to nobody, and cannot use more than the task has.
\set ON_ERROR_STOP off
select caliber_delegate_task(:'ada_of_data', 'code', 'help', parent_delegation_id => :'coverage');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select caliber_progress_delegation(:'coverage', tokens => 4001);
\set ON_ERROR_STOP on
\echo SQLSTATE :LAST_ERROR_SQLSTATE

select caliber_complete_delegation(:'coverage', 'success', 'Coverage: 67%. Untested: password_reset()', tokens => 900) as status;
select caliber_complete_delegation(:'review', 'success', 'Found 3 issues, 1 high', tokens => 1100) as status;
select caliber_complete_delegation(:'logs', 'success', 'No brute force, 2 anomalies', tokens => 1200) as status;
select task, status, delegatee, depth, tokens, tool_calls, summary from caliber_delegation_tree(:'review');
select caliber_delegation_wait(:'logs') as logs;

-- Both results are in kyra's inbox.
select message_type, priority, payload -> 'result' ->> 'summary' as summary
from caliber_message_inbox(:'kyra') where message_type = 'task_result' order by message_id;

-- === 19. Handoffs ===
-- luke hands the rest of a review to ada, with the lease on the file. Nothing moves before she accepts.
select caliber_trajectory_start('review of auth', :'luke') as reviewing
\gset
select caliber_lock_acquire(:'luke', 'file', 'src/auth/jwt.py', 'exclusive', 60000) as lease
\gset
select caliber_variable_set(:'reviewing', 'severity', '"high"') as version;
select caliber_initiate_handoff(:'luke', null, :'reviewing', 'specialization', 'hashing is fine, tokens never expire',
    array['look for reuse in the logs'], to_agent_id => :'ada_of_data', lock_ids => array[:'lease'::uuid]) as handoff
\gset
select status, reason, warnings from caliber_accept_handoff(:'handoff', :'ada_of_data');
select a.name as owner, l.resource_id as file, l.holder_agent_id = a.agent_id as has_the_lease
from caliber_trajectory as t join caliber_agent as a using (agent_id), caliber_lock as l
where t.trajectory_id = :'reviewing' and l.resource_type = 'file' and l.resource_id = 'src/auth/jwt.py';
select caliber_handoff_context(:'handoff');

-- Who cannot take it does not: an outcome with its reason, and recorded as such.
select caliber_initiate_handoff(:'ada_of_data', null, :'reviewing', 'capability_mismatch', 'needs a cryptographer',
    to_agent_id => :'kyra', required_capabilities => array['cryptography']) as refused
\gset
select status, status_reason from caliber_handoffs where handoff_id = :'refused';
select caliber_complete_handoff(:'handoff', :'ada_of_data') as status;

-- The trail is chained: nobody changes it unnoticed.
select event_type, reason from caliber_audit_trail(trajectory_id => :'reviewing');
select count(*) as problems from caliber_audit_verify();

-- === 20. Timeline ===
-- The whole audit, from its start to the last result. As a page for a browser:
-- psql -At -c "select caliber_timeline_html('…')" > timeline.html
select to_char(elapsed, 'MI:SS.MS') as elapsed, agent, kind, what from caliber_timeline(:'audit') where kind = 'delegation';
select left(caliber_timeline_html(:'audit'), 15) as page;
