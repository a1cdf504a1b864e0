"""Reports: tables and figures rebuilt from run folders alone; nothing here needs torch."""
