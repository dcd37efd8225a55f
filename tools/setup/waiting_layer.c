// A layer of Vulkan's loader for drivers that compute on the CPU: who asks whether a fence is
// signalled sleeps until it is, for a millisecond at most.
//
// ggml asks again and again while a graph is computed, since with a GPU the CPU has nothing else to
// do. Here it takes a core from the driver, which compiles shaders meanwhile: half of two.

#include "vulkan_layer.h"

enum { LONGEST_NS = 1000000 };

static PFN_vkWaitForFences next_wait;

static void find_of_instance(VkInstance made) { (void)made; }

static void find_of_device(VkDevice made) {
    next_wait = (PFN_vkWaitForFences)next_device(made, "vkWaitForFences");
}

static VKAPI_ATTR VkResult VKAPI_CALL get_fence_status(VkDevice device, VkFence fence) {
    VkResult result = next_wait(device, 1, &fence, VK_TRUE, LONGEST_NS);
    return result == VK_TIMEOUT ? VK_NOT_READY : result;
}

const struct layer_function layer_functions[] = {{"vkGetFenceStatus", get_fence_status}, {NULL}};
