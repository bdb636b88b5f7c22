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
