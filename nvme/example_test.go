package nvme_test

import (
	"fmt"
	"log"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// A controller is opened through a transport, here the software controller in
// front of memory. Data lies in the arena, which the controller reaches.
func Example() {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	backing, err := soft.NewMemoryBacking(64 << 20)
	if err != nil {
		log.Fatal(err)
	}
	transport, err := soft.New(arena, []soft.Backing{backing}, soft.Options{LBASizeBytes: 4096})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := nvme.OpenNamespace(transport, 1, nvme.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	fmt.Println(dev.Controller().Info().Model)
	fmt.Println(dev.Geometry().Blocks, "blocks of", dev.Geometry().LBASizeBytes, "bytes")

	page, err := arena.Alloc(1)
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Free(page)
	copy(page, "hello, namespace")
	if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 8192, Vec: [][]byte{page}}}); err != nil {
		log.Fatal(err)
	}
	if err := dev.Do([]nvme.Request{{Op: nvme.OpFlush}}); err != nil {
		log.Fatal(err)
	}
	clear(page)
	if err := dev.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: 8192, Vec: [][]byte{page}}}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", page[:16])
	// Output:
	// runsc-fs soft NVMe controller
	// 16384 blocks of 4096 bytes
	// hello, namespace
}
