/* A libnvidia-ml.so.1 with one GPU of 80 GiB. What its processes hold is read from the folder that simulated engines
 * write (VLLMD_TEST_GPU: a file for each pid), and whether it works from a file (VLLMD_TEST_NVML: one word).
 * Only what pynvml asks for here is declared; numbers are those of NVIDIA's public NVML reference. */
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15 };
enum { MOST_PROCESSES = 64 };

typedef struct {
    unsigned long long total, free, used;
} memory_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_t;

static int is(const char *word) {
    char found[32] = "";
    const char *path = getenv("VLLMD_TEST_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%31s", found) != 1) found[0] = 0;
        fclose(file);
    }
    return strcmp(found, word) == 0;
}

/* What a call returns that asks the device: it waits as long as the driver hangs. */
static int device(void) {
    while (is("hang")) usleep(20000);
    if (is("unloaded")) return DRIVER_NOT_LOADED;
    return is("lost") ? GPU_IS_LOST : SUCCESS;
}

static unsigned held(process_t *found) {
    unsigned count = 0;
    const char *path = getenv("VLLMD_TEST_GPU");
    DIR *folder = path ? opendir(path) : NULL;
    if (!folder) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) && count < MOST_PROCESSES;) {
        char name[4096];
        unsigned long long bytes;
        char *rest;
        int pid = (int)strtol(entry->d_name, &rest, 10);
        if (!isdigit((unsigned char)entry->d_name[0]) || *rest || kill(pid, 0) != 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        FILE *file = fopen(name, "r");
        if (!file) continue;
        if (fscanf(file, "{\"bytes\": %llu", &bytes) == 1)
            found[count++] = (process_t){(unsigned)pid, bytes, 0xFFFFFFFFu, 0xFFFFFFFFu};
        fclose(file);
    }
    closedir(folder);
    return count;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return is("unloaded") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "an error of the simulated NVML"; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return device(); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return device(); }

int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    (void)handle;
    snprintf(name, size, "NVIDIA H100 80GB HBM3");
    return device();
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    (void)handle;
    snprintf(uuid, size, "GPU-00000000-0000-0000-0000-000000000001");
    return device();
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    snprintf(version, size, "580.00.00");
    return device();
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    process_t found[MOST_PROCESSES];
    unsigned count = held(found);
    (void)handle;
    memory->total = 80ull << 30;
    memory->used = 0;
    for (unsigned i = 0; i < count; i++) memory->used += found[i].used;
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return device();
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *infos) {
    process_t found[MOST_PROCESSES];
    unsigned there = held(found), room = *count;
    (void)handle;
    *count = there;
    if (is("old")) return FUNCTION_NOT_FOUND;
    if (there == 0) return device();
    if (!infos || room < there) return INSUFFICIENT_SIZE;
    memcpy(infos, found, there * sizeof *infos);
    return device();
}
