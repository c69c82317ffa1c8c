"""From a config to a finished run directory: training by one method, and density discovery."""
