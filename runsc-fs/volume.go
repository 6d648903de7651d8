package main

func newVolumeGroup() *group {
	return &group{
		word:  "volume",
		about: "create, list, show and remove volumes",
		verbs: []verb{&volumeCreate{}, &volumeLs{}, &volumeInspect{}, &volumeRm{}},
	}
}
