-- uses: schema records
--
-- pending_end: what Celery has to be told about a run that ends without an outcome.
--
-- ARGV  id
-- Returns  { why, attempt, message }, or {} if Celery was told already
-- Errors   none
-- Called again: the same, unless something changed.
local r = load_run(ARGV[1])
if not r or r.state ~= 'ending' then return {} end
return { r.why, r.attempt, call('HGET', K.run(r.id), 'message') }
