-- uses: schema records
--
-- read_retry: what is needed to send a retry again whose message got lost.
--
-- ARGV  id
-- Returns  { queue, attempt that is over, its message }, or {} if the retry has arrived meanwhile
local r = load_run(ARGV[1])
if not r or r.st ~= 'retrying' then return {} end
return { r.q, int(r.a), call('HGET', P .. 'r:' .. r.id, 'm') }
