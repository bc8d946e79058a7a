-- uses: schema records memory epoch
--
-- check_epoch: asked on a new connection. If this is no longer the Redis that the ledger was in, a new epoch begins.
--
-- ARGV  -
-- Returns  the epoch, or '' if the ledger is empty
-- Errors   none
-- Called again: the same.
declare_if_moved()
return G.epoch or ''
