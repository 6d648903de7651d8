// Package e2e tests the whole product: through a real dockerd and through plain
// OCI bundles, with PostgreSQL, fio and SQLite as the applications.
//
// The tests run only when asked for (see lab.Need). They share one private dockerd
// and one cell for plain containers, both started by the first test that needs
// them. When a test failed, the logs of both stay and their place is printed.
//
// RUNSC_FS_E2E_STORAGE=bind puts the data on host directories instead of blobfs
// volumes where a test allows it, and RUNSC_FS_BINARY names another runtime: both
// together show what stock runsc does.
package e2e
