-- uses: schema records lanes rules index term views
--
-- read_jobs: how jobs are doing; what status has not told of them. Reads only.
--
-- ARGV  names of jobs
-- Returns  JSON: of each that is there what status tells
-- Errors   none
-- Called again: the same, as far as nothing changed.
return cjson.encode(told_jobs(ARGV))
