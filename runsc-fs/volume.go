package main

func newVolumeGroup() *group {
	return &group{
		word:  "volume",
		about: "create, list, show, resize, snapshot, clone and remove volumes",
		verbs: []verb{&volumeCreate{}, &volumeLs{}, &volumeInspect{}, &volumeResize{}, &volumeRm{},
			&volumeSnapshot{}, &volumeClone{}, &volumeRollback{}, &volumeFlatten{}},
	}
}
