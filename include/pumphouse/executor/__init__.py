"""The one who changes a target: takes it, and carries out the steps that planners made (`pumphouse.loader.steps`)."""
