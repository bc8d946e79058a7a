-- uses: schema records lanes rules index term views
--
-- read_jobs: how jobs are doing: the part that read_status leaves out. Reads only.
--
-- ARGV  names of jobs
-- Returns  JSON: each job that exists, as in read_status
-- Errors   none
-- Called again: the same, unless something changed.
return cjson.encode(shown_jobs(ARGV))
