-- The ledger clock. Needs records.
--
-- It advances only here, by at most two intervals: time during which Redis was down, or by which its clock jumped, does not
-- end a lease.

local function advance_clock(interval)
  local swept = tonumber(call('HGET', P .. 'g', 'swept')) or NOW
  G.clk = G.clk + math.max(0, math.min(NOW - swept, 2 * interval))
  call('HSET', P .. 'g', 'clk', int(G.clk), 'swept', int(NOW))
end
