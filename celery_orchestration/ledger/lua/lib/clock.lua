-- The ledger clock. Needs records.
--
-- It advances only here, by at most two intervals: time during which Redis was down, or by which its clock jumped, does not
-- end a lease.

function advance_clock(interval)
  local swept = tonumber(call('HGET', K.ledger, 'swept')) or NOW
  G.clock = G.clock + math.max(0, math.min(NOW - swept, 2 * interval))
  call('HSET', K.ledger, 'clock', int(G.clock), 'swept', int(NOW))
end
