-- uses: schema records
--
-- pending_end: what Celery has to be told about a run that ends without an outcome.
--
-- ARGV  id
-- Returns  { why, attempt, message }, or {} if that was done already
local r = load_run(ARGV[1])
if not r or r.st ~= 'ending' then return {} end
return { r.why, r.a, call('HGET', P .. 'r:' .. r.id, 'm') }
