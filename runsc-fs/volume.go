package main

func newVolumeGroup() *group {
	return &group{
		word:  "volume",
		about: "create, list, show, snapshot, clone and remove volumes",
		verbs: []verb{&volumeCreate{}, &volumeLs{}, &volumeInspect{}, &volumeRm{},
			&volumeSnapshot{}, &volumeClone{}, &volumeRollback{}, &volumeFlatten{}},
	}
}
