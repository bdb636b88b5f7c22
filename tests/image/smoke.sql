-- Run by `make image-test` through TCP against a server started from the image. Anything that is
-- not as it should be raises, and psql ends with a status other than 0.
\set ON_ERROR_STOP on

select current_setting('server_version') as server, extversion as caliber
from pg_extension
where extname = 'caliber';

do $$
begin
    assert (select count(*) from pg_extension where extname in ('caliber', 'plpython3u', 'vector')) = 3,
        'the image did not create the extension in the default database';
    assert inet_server_addr() is not null, 'not connected through TCP';
    assert caliber_uuid_v7() <> caliber_uuid_v7(), 'ids repeat';
end
$$;

-- numpy is there for the server's own Python.
do language plpython3u $$
import numpy
assert numpy.arange(3).sum() == 3
$$;

-- A call of each kind: verbs in Python, reads in SQL, an error with its SQLSTATE.
do $$
declare
    ann uuid := caliber_agent_register('coder', name => 'smoke');
begin
    assert caliber_agent_heartbeat(ann, 'smoking', tokens => 3) = 'idle', 'a beat returns the status';
    assert (select tokens from caliber_agents where name = 'smoke') = 3, 'a beat adds up';
    assert (select liveness from caliber_agent_liveness where agent_id = ann) = 'alive', 'it lives';
    assert caliber_agent_resume(ann) = 2, 'resuming is the next incarnation';
    begin
        perform caliber_agent_heartbeat(ann, incarnation => 1);
        assert false, 'a beat of the old incarnation passed';
    exception
        when sqlstate 'KA001' then null;
    end;
    assert caliber_agent_terminate(ann) = 1, 'it ends';
end
$$;

select event_type, summary from caliber_events_since();
