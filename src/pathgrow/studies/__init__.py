"""Studies: grids of runs that answer one question, resumable and spread over machines."""
