-- uses: schema records lanes rules index term views
--
-- list_entries: entries of the schedule that fire jobs; the part that read_status and explain leave out. Reads only.
--
-- ARGV  how many to skip, how many
-- Returns  JSON: each entry as in read_status
-- Errors   none
-- Called again: the same, unless something changed.
return cjson.encode(shown_entries(tonumber(ARGV[1]), tonumber(ARGV[2])))
