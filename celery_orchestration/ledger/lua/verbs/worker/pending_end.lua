-- uses: schema records
--
-- pending_end: the end that has to be reported to Celery, of a run that ends without an outcome.
--
-- ARGV  id
-- Returns  { why, attempt, message }, or {} if Celery knows already
-- Errors   none
-- Called again: the same, unless something changed.
local r = load_run(ARGV[1])
if not r or r.state ~= 'ending' then return {} end
return { r.why, r.attempt, call('HGET', K.run(r.id), 'message') }
