package main

func newVolumeGroup() *group {
	return &group{
		word:  "volume",
		about: "create, list, show, watch, resize, snapshot, clone and remove volumes",
		verbs: []verb{&volumeCreate{}, &volumeLs{}, &volumeInspect{}, &volumeTop{}, &volumeTrace{},
			&volumeResize{}, &volumeRm{},
			&volumeSnapshot{}, &volumeClone{}, &volumeRollback{}, &volumeFlatten{}},
	}
}
