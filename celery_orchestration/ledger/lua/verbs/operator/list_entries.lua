-- uses: schema records lanes rules index term views
--
-- list_entries: entries of the schedule that fire jobs; what status and explain have not told of them. Reads only.
--
-- ARGV  how many to skip, how many
-- Returns  JSON: of each what status tells
-- Errors   none
-- Called again: the same, as far as nothing changed.
return cjson.encode(told_entries(tonumber(ARGV[1]), tonumber(ARGV[2])))
