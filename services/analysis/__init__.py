"""The analysis service: what runs show, in the browser and as JSON; it reads results and changes none."""
