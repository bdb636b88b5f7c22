-- Bounds: how long texts and lists may be in the tables that are written most.
--
-- A check of a table is parsed anew by every statement that writes the table, whatever it writes:
-- of the instructions of a heartbeat that was a quarter, with two checks, and of those of sending a
-- message a fifth, with four in two tables. A domain says the same, is parsed once a session, and
-- looked at only where the column is written. Tables that are written rarely have checks.

create domain @extschema@._caliber_text_200 as text
constraint caliber_text_length check (pg_catalog.length(value) <= 200);
comment on domain @extschema@._caliber_text_200 is 'At most 200 characters.';

create domain @extschema@._caliber_text_500 as text
constraint caliber_text_length check (pg_catalog.length(value) <= 500);
comment on domain @extschema@._caliber_text_500 is 'At most 500 characters.';

create domain @extschema@._caliber_text_1000 as text
constraint caliber_text_length check (pg_catalog.length(value) <= 1000);
comment on domain @extschema@._caliber_text_1000 is 'At most 1000 characters.';

create domain @extschema@._caliber_text_2000 as text
constraint caliber_text_length check (pg_catalog.length(value) <= 2000);
comment on domain @extschema@._caliber_text_2000 is 'At most 2000 characters.';

create domain @extschema@._caliber_text_262144 as text
constraint caliber_text_length check (pg_catalog.length(value) <= 262144);
comment on domain @extschema@._caliber_text_262144 is 'At most 262144 characters.';

create domain @extschema@._caliber_key_63 as text
constraint caliber_key_length check (pg_catalog.length(value) between 1 and 63);
comment on domain @extschema@._caliber_key_63 is '1 to 63 characters.';

create domain @extschema@._caliber_key_200 as text
constraint caliber_key_length check (pg_catalog.length(value) between 1 and 200);
comment on domain @extschema@._caliber_key_200 is '1 to 200 characters.';

create domain @extschema@._caliber_key_1000 as text
constraint caliber_key_length check (pg_catalog.length(value) between 1 and 1000);
comment on domain @extschema@._caliber_key_1000 is '1 to 1000 characters.';

create domain @extschema@._caliber_ids_1000 as uuid[]
constraint caliber_ids_length check (pg_catalog.cardinality(value) <= 1000);
comment on domain @extschema@._caliber_ids_1000 is 'At most 1000 ids.';

create domain @extschema@._caliber_share as real
constraint caliber_share_range check (value between 0 and 1);
comment on domain @extschema@._caliber_share is '0 to 1.';
