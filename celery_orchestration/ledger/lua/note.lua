-- uses: records
--
-- note: somebody did something that is not done by a verb of its own.
--
-- ARGV  who, what, about, why
-- Returns  1
audit(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
