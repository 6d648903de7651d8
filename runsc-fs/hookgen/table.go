package main

// hookTable lists every change that runsc-fs makes to gVisor. docs/hooks.md
// tells the story around it. The hooked code runs in three processes: the
// runsc command on the host, the sandbox ("boot"), and the gofer, which is
// only kept from serving volumes.
var hookTable = []hook{
	// The runsc command, on the host.
	{
		name: "open-spec",
		why:  "bind mounts of volumes become volume mounts, for every process that reads the spec",
		file: "runsc/specutils/specutils.go",
		at:   funcStart{"OpenSpec"},
		code: `if f, err := HOOKS.OpenSpec(bundleDir); f != nil || err != nil {
			return f, err
		}`,
	},
	{
		name: "volume-source",
		why:  "the source of a volume mount is a name, not a path in the bundle",
		file: "runsc/specutils/specutils.go",
		at:   afterDefinition{"fixSpec", "m"},
		code: `if HOOKS.KeepsSource(m) {
			continue
		}`,
	},
	{
		name: "open-root-volumes",
		why:  "volumes are opened and locked before any process starts",
		file: "runsc/container/container.go",
		at:   funcStart{"(*Container).createRoot"},
		code: `if err := HOOKS.OpenVolumes(conf.RootDir, args.Spec, c.ID, sandboxID); err != nil {
			return err
		}
		defer HOOKS.ForgetVolumes(c.ID)`,
	},
	{
		name: "check-subcontainer-volumes",
		why:  "a container that cannot get its volumes is not created",
		file: "runsc/container/container.go",
		at:   funcStart{"(*Container).createSubcontainer"},
		code: `if err := HOOKS.CheckVolumes(spec, c.Sandbox.ID); err != nil {
			return err
		}`,
	},
	{
		name: "open-subcontainer-volumes",
		why:  "volumes are opened and locked before the gofer starts",
		file: "runsc/container/container.go",
		at:   beforeCall{"(*Container).startImpl", "cgroup.RunInCgroup", ""},
		code: `if err := HOOKS.OpenVolumes(conf.RootDir, c.Spec, c.ID, c.Sandbox.ID); err != nil {
			return err
		}
		defer HOOKS.ForgetVolumes(c.ID)`,
	},
	{
		name: "failed-start",
		why:  "after a start that has failed nothing is left: neither the sandbox nor its hold on the volumes",
		file: "runsc/container/container.go",
		at:   beforeCall{"(*Container).startImpl", "startRoot", ""},
		code: `start := startRoot
		startRoot = func(conf *config.Config, spec *specs.Spec) error {
			err := start(conf, spec)
			if err != nil {
				HOOKS.AwaitFailed(spec, c.Sandbox.Pid.Load())
			}
			return err
		}`,
	},
	{
		name: "no-root-overlay",
		why:  "what is written to a root file system with a root volume goes there, and not to an upper layer of the runtime's own, as if it were read-only",
		file: "runsc/container/container.go",
		at:   funcStart{"(*Container).initGoferConfs"},
		code: `if HOOKS.HasRootVolume(c.Spec) && !c.Spec.Root.Readonly {
			c.Spec.Root.Readonly = true
			defer func() { c.Spec.Root.Readonly = false }()
		}`,
	},
	{
		name: "refuse-checkpoint",
		why:  "a container with volumes, which cannot be saved, must survive the attempt",
		file: "runsc/container/container.go",
		at:   funcStart{"(*Container).Checkpoint"},
		code: `if err := HOOKS.CheckSavable(c.ID, c.Spec); err != nil {
			return err
		}`,
	},
	{
		name: "donate-volumes",
		why:  "the sandbox process inherits the open volumes",
		file: "runsc/sandbox/sandbox.go",
		at:   afterCall{"(*Sandbox).createSandboxProcess", "donations.DonateAndClose", `"sink-fds"`},
		code: `if err := HOOKS.DonateVolumes(s.ID, args.Spec, &donations, cmd); err != nil {
			return err
		}`,
	},
	{
		name: "send-volumes",
		why:  "a running sandbox receives the volumes of a further container",
		file: "runsc/sandbox/sandbox.go",
		at:   beforeCall{"(*Sandbox).StartSubcontainer", "s.call", "boot.ContMgrStartSubcontainer"},
		code: `HOOKS.SendVolumes(cid, &args.BlobfsVolumes, &args.FilePayload.Files)`,
	},
	{
		name: "stop-orderly",
		why:  "a sandbox with volumes writes them back before it is killed",
		file: "runsc/sandbox/sandbox.go",
		at:   funcStart{"(*Sandbox).destroy"},
		code: `HOOKS.StopSandbox(s.Pid.Load(), func() error {
			return s.SignalContainer(s.ID, unix.SIGKILL, true)
		})`,
	},

	{
		name: "call-volumes",
		why:  "lets commands reach the volumes of a sandbox that runs",
		file: "runsc/sandbox/sandbox.go",
		at:   fileEnd{},
		code: `func (s *Sandbox) CallVolumes(method string, arg any) error { return s.call(method, arg, nil) }`,
	},

	// The sandbox process.
	{
		name: "boot-flags",
		why:  "donated volumes are named on the command line of the sandbox",
		file: "runsc/cmd/boot.go",
		at:   funcStart{"(*Boot).SetFlags"},
		code: `HOOKS.SetBootFlags(f)`,
	},
	{
		name: "setup",
		why:  "volumes and their memory are set up before the system call filter",
		file: "runsc/cmd/boot.go",
		at:   beforeCall{"(*Boot).Execute", "boot.New", ""},
		code: `if err := HOOKS.Setup(b.totalMem); err != nil {
			util.Fatalf("%v", err)
		}`,
	},
	{
		name: "register-filesystem",
		why:  "blobfs is a file system type of a sandbox with volumes",
		file: "runsc/boot/vfs.go",
		at:   beforeCall{"registerFilesystems", "memdev.Register", ""},
		code: `if err := HOOKS.RegisterFilesystem(vfsObj); err != nil {
			return err
		}`,
	},
	{
		name: "mount-options",
		why:  "a volume mount is served by blobfs and refuses unknown options",
		file: "runsc/boot/vfs.go",
		at:   switchCase{"getMountNameAndOptions", "m.mount.Type"},
		code: `case HOOKS.FilesystemName:
			return HOOKS.MountOptions(m.mount)`,
	},
	{
		name: "root-volume",
		why:  "the root file system is an overlay of the image and the root volume",
		file: "runsc/boot/vfs.go",
		at:   beforeCall{"(*containerMounter).createMountNamespace", "c.l.k.VFS().NewMountNamespace", ""},
		code: `if HOOKS.HasRootVolume(spec) {
			both, cleanup, err := HOOKS.MountRootVolume(ctx, c.l.k.VFS(), creds, spec, fsName, opts)
			if err != nil {
				return nil, err
			}
			defer cleanup()
			fsName, opts = overlay.Name, both
		}`,
	},
	{
		name: "not-on-the-root",
		why:  "the root volume is part of the root file system and not mounted on it",
		file: "runsc/boot/vfs.go",
		at:   funcStart{"compileMounts"},
		code: `spec = HOOKS.WithoutRootVolume(spec)`,
	},
	{
		name: "overlay-upper",
		why:  "volumes have all that an upper layer of an overlay needs",
		file: "pkg/sentry/fsimpl/overlay/overlay.go",
		at:   afterDefinition{"(FilesystemType).GetFilesystem", "upperFSName"},
		code: `if upperFSName == "blobfs" {
			upperFSName = "tmpfs"
		}`,
	},
	{
		name: "mount-error",
		why:  "the error of a volume names it and says what to do; options in Go's notation only hide that",
		file: "runsc/boot/vfs.go",
		at:   afterCall{"(*containerMounter).mountSubmount", "c.l.k.VFS().MountDisconnected", ""},
		code: `if err != nil && HOOKS.IsVolumeMount(mount) {
			return nil, err
		}`,
	},
	{
		name: "proc-mounts",
		why:  "a file system that has a source is shown with it, and with all options of the mount",
		file: "pkg/sentry/vfs/mount.go",
		at:   afterDefinition{"(*VirtualFilesystem).GenerateProcMounts", "opts"},
		code: `if fs, ok := mnt.fs.Impl().(interface {
			ProcMounts(MountOptions) (source, options string)
		}); ok {
			source, options := fs.ProcMounts(mntOpts)
			fmt.Fprintf(buf, "%s %s %s %s 0 0\n", manglePath(source), manglePath(path), mnt.fs.FilesystemType().Name(), options)
			continue
		}`,
	},
	{
		name: "proc-mountinfo",
		why:  "as proc-mounts, in the other format",
		file: "pkg/sentry/vfs/mount.go",
		at:   afterDefinition{"(*VirtualFilesystem).GenerateProcMountInfo", "opts"},
		code: `if fs, ok := mnt.fs.Impl().(interface {
			ProcMountInfo(MountOptions) (source, mount, super string)
		}); ok {
			source, options, super := fs.ProcMountInfo(mnt.Options())
			fmt.Fprintf(buf, "%s %s- %s %s %s\n", options, vfs.generateOptionalTags(ctx, mnt, taskRootDir),
				mnt.fs.FilesystemType().Name(), manglePath(source), super)
			continue
		}`,
	},
	{
		name: "overlay-device-numbers",
		why:  "a device in an overlay has its numbers, also for who asks for nothing that overlays look up in a layer",
		file: "pkg/sentry/fsimpl/overlay/filesystem.go",
		at:   afterDefinition{"(*filesystem).StatAt", "layerMask"},
		code: `if kind := d.mode.Load() & linux.S_IFMT; kind == linux.S_IFCHR || kind == linux.S_IFBLK {
			layer := d.topLayer()
			device, err := fs.vfsfs.VirtualFilesystem().StatAt(ctx, fs.creds, &vfs.PathOperation{Root: layer, Start: layer}, &vfs.StatOptions{Mask: linux.STATX_TYPE})
			if err != nil {
				return linux.Statx{}, err
			}
			stat.RdevMajor, stat.RdevMinor = device.RdevMajor, device.RdevMinor
		}`,
	},
	{
		name: "seccomp-rules",
		why:  "system calls that volumes need beyond the stock filter",
		file: "runsc/boot/filter/config/config.go",
		at:   beforeCall{"rules", "opt.Platform.SyscallFilters", ""},
		code: `s.Merge(HOOKS.SeccompRules())`,
	},
	{
		name: "tmpfile",
		why: "whether files without a name can be made is for the file system to say that has the directory, " +
			"not for those that the path to it leads through",
		file: "pkg/sentry/vfs/vfs.go",
		at:   beforeCall{"(*VirtualFilesystem).OpenAt", "vfs.getResolvingPath", ""},
		code: `if opts.Flags&linux.O_TMPFILE != 0 && pop.Path.HasComponents() {
			dir, err := vfs.GetDentryAt(ctx, creds, pop, &GetDentryOptions{})
			if err != nil {
				return nil, err
			}
			defer dir.DecRef(ctx)
			return vfs.OpenAt(ctx, creds, &PathOperation{Root: pop.Root, Start: dir}, opts)
		}`,
	},
	{
		name: "nofollow",
		why:  "lets a file system tell O_DIRECTORY from a slash at the end of the path, which makes O_NOFOLLOW void",
		file: "pkg/sentry/vfs/vfs.go",
		at:   beforeCall{"(*VirtualFilesystem).OpenAt", "rp.mount.fs.impl.OpenAt", ""},
		code: `if pop.Path.Dir {
			opts.Flags &^= linux.O_NOFOLLOW
		}`,
	},
	{
		name: "aio-limits",
		why:  "/proc/sys/fs says how much asynchronous I/O there may be, and is",
		file: "pkg/sentry/fsimpl/proc/tasks_sys.go",
		at:   mapEntry{"(*filesystem).newSysDir", `"nr_open"`},
		code: `"aio-max-nr": fs.newInode(ctx, root, 0644, &atomicInt32File{val: HOOKS.AIOMaxNr, max: 1<<31 - 1}),
			"aio-nr": fs.newInode(ctx, root, 0444, &atomicInt32File{val: HOOKS.AIONr}),`,
	},
	{
		name: "serve-volumes",
		why:  "volumes take commands through the control socket",
		file: "runsc/boot/controller.go",
		at:   beforeCall{"(*controller).registerHandlers", "c.srv.Register", "&debug{}"},
		code: `if volumes := HOOKS.ServeVolumes(); volumes != nil {
			c.srv.Register(volumes)
		}`,
	},
	{
		name: "start-args",
		why:  "describes the volume files at the end of the file payload",
		file: "runsc/boot/controller.go",
		at:   structField{"StartArgs"},
		code: `BlobfsVolumes []HOOKS.VolumeArg`,
	},
	{
		name: "receive-volumes",
		why:  "volumes of a further container arrive with its start request",
		file: "runsc/boot/controller.go",
		at:   beforeCall{"(*containerManager).StartSubcontainer", "cm.l.mu.Lock", ""},
		code: `if err := HOOKS.ReceiveVolumes(args.BlobfsVolumes, &args.FilePayload.Files); err != nil {
			return err
		}`,
	},
	{
		name: "volumestats",
		why:  "a sandbox with volumes tells commands what is done with them",
		file: "runsc/boot/controller.go",
		at:   afterCall{"(*controller).registerHandlers", "c.srv.Register", "&debug{}"},
		code: `if s := HOOKS.VolumeStatsServer(); s != nil {
			c.srv.Register(s)
		}`,
	},
	{
		name: "shutdown",
		why:  "volumes are written back and closed when the sandbox ends",
		file: "runsc/boot/loader.go",
		at:   funcStart{"(*Loader).Destroy"},
		code: `HOOKS.Shutdown()`,
	},

	// Any process.
	{
		name: "installed",
		why:  "lets the binary tell a build with hooks from one without",
		file: "runsc/boot/vfs.go",
		at:   fileEnd{},
		code: `func init() { HOOKS.MarkInstalled() }`,
	},
}
