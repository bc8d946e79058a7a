"""What each caller asks the ledger: one class for workers, schedulers, people and supervisors of pools."""
