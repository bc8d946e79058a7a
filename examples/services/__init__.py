"""Two services that share a ledger, as docs/services.md describes."""
