\set n random(1, 1000)
select caliber_turn_add(
    ('00000000-0000-7000-8001-' || lpad(:n, 12, '0'))::uuid, 'user', :activity, tokens => :tokens
);
