-- The resources that the clients lease, known already, as they are after a while.
insert into caliber_resource (resource_type, resource_id, fence)
select kind, prefix || client || '-' || n, 1
from generate_series(1, 8) as client, generate_series(1, 1000) as n,
    (values ('artifact', 'a-'), ('file', 'src/a-')) as k (kind, prefix);
