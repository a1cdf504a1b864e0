"""SLFed with all its parts, in the order of a round.

`personal_models` (train, recover) - `probe_images` (`gan`, `row_means`, `copy_guard`, `feature_ranges`) -
`comparison` (`similarity`) - `hearsay` (`trust`, `opinion`) - `peer_lists` - sums by `kinfolk.shares`. The
method itself is `slfed`, also as `slfed_similar` with other defaults.
"""
