-- uses: schema records
--
-- read_retry: what is needed to send a retry again, because its message got lost.
--
-- ARGV  id
-- Returns  { queue, the attempt that is over, its message }, or {} if the retry has arrived meanwhile
-- Errors   none
-- Called again: the same, unless something changed.
local r = load_run(ARGV[1])
if not r or r.state ~= 'retrying' then return {} end
return { r.queue, int(r.attempt), call('HGET', K.run(r.id), 'message') }
