"""Plans of recipes and modules: kept from earlier runs, or made anew in a process of their own."""
