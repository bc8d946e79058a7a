-- uses: schema records memory epoch
--
-- check_epoch: a new connection. Is this still the Redis that the ledger was in? If not, a new epoch begins.
--
-- ARGV  -
-- Returns  the epoch, or '' if the ledger is empty
-- Errors   none
-- Called again: the same.
same_epoch()
return G.epoch or ''
