package sentry

// The mount options sync and dirsync, see mount(8), make changes durable before
// the calls that make them return. Writes to files see to it with their flags.

// settle makes a change of a file that has just succeeded durable, if the volume is
// mounted so. err is the outcome of the change.
//
// Preconditions: no locks are held.
func (i *inode) settle(err error) error {
	if err != nil || !i.fs.sync {
		return err
	}
	return errno(i.blob.Fsync(nil, false /* dataOnly */))
}

// settleNames is settle for a change of directories.
func (fs *filesystem) settleNames(err error) error {
	if err != nil || !fs.dirSync {
		return err
	}
	return errno(fs.blob.SyncNames())
}
