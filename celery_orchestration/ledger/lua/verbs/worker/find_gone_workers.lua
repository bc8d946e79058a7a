-- uses: schema records memory epoch
--
-- find_gone_workers: which of these workers the ledger does not list: they left, or lost their lease. Changes
-- nothing, but a Redis that takes no writes does not answer: it may be a replica that has not heard of a worker yet.
--
-- ARGV  lease of the worker that asks (ms), then the workers
-- Returns  { workers that are not listed }; none as long as workers may still have to register: before a new epoch
--          opens, and while the ledger is younger than a lease
-- Errors   none of its own; Redis's, if it takes no writes
-- Called again: the same, unless workers came or went meanwhile.
allow_when_full()
local gone = {}
if not G.epoch or G.clock < G.opens or G.clock < longest_lease(tonumber(ARGV[1])) then return gone end
for i = 2, #ARGV do
  if not call('ZSCORE', K.leases, ARGV[i]) then gone[#gone + 1] = ARGV[i] end
end
return gone
