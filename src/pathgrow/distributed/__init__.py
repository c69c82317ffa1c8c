"""Communication between the processes of one run, and the CPUs that each may use."""
