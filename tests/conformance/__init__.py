"""The checks of contract section 14 as black-box tests over HTTP: `test_k<number>_...` belongs to check K<number>."""
