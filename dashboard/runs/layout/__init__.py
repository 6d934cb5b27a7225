"""The picture of how a run is split over its ranks: data without markup."""
