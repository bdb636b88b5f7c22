-- Logins: a database role for one agent, so that the agent itself connects and is held to its
-- own rows and its own name. The role is an agent because caliber_agent.login_role says so,
-- never because of what it is called.
--
-- Making and dropping roles needs CREATEROLE, which caliber_owner must not have. So these two
-- verbs run as their caller, and only the mapping is written by a definer helper.

create function @extschema@.caliber_agent_login_create(
    agent_id uuid,
    verifier text default null,
    login text default null
)
returns name
language plpython3u
set search_path = pg_catalog, pg_temp
as $python$ @logins.create@ $python$;

comment on function @extschema@.caliber_agent_login_create(uuid, text, text) is
'Makes a login for an agent and returns its name. Takes a SCRAM verifier, never a password; without one the login needs another way to authenticate. Admins with CREATEROLE only.';

create function @extschema@.caliber_agent_login_drop(agent_id uuid)
returns name
language plpython3u
set search_path = pg_catalog, pg_temp
as $python$ @logins.drop@ $python$;

comment on function @extschema@.caliber_agent_login_drop(uuid) is
'Drops the login of an agent, ended or not, and returns its name; null when it has none. What is connected as it can do nothing more. Admins with CREATEROLE only.';

create function @extschema@._caliber_login_map(
    agent_id uuid,
    login text
)
returns name
language plpython3u
security definer
set search_path = pg_catalog, pg_temp
as $python$ @logins.map_role@ $python$;

comment on function @extschema@._caliber_login_map(uuid, text) is
'Writes which role is the agent, or with null that none is; returns the role it was. Admins only.';

grant execute on function
    @extschema@.caliber_agent_login_create(uuid, text, text),
    @extschema@.caliber_agent_login_drop(uuid),
    @extschema@._caliber_login_map(uuid, text)
to caliber_admin;
