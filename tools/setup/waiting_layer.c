// A layer of Vulkan's loader for drivers that compute on the CPU: who asks whether a fence is
// signalled sleeps until it is, for a millisecond at most.
//
// ggml asks again and again while a graph is computed, since with a GPU the CPU has nothing else to
// do. Here it takes a core from the driver, which compiles shaders meanwhile: half of two.

#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

enum { LONGEST_NS = 1000000 };

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
// Of the last instance and device; those of one driver have the same functions.
static PFN_vkCreateDevice next_create_device;
static PFN_vkWaitForFences next_wait;

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
        const VkAllocationCallbacks *allocator, VkInstance *made) {
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO
            || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance next = (PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance");
    VkResult result = next(info, allocator, made);
    if (result == VK_SUCCESS)
        next_create_device = (PFN_vkCreateDevice)next_instance(*made, "vkCreateDevice");
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical,
        const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator, VkDevice *made) {
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO
            || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = next_create_device(physical, info, allocator, made);
    if (result == VK_SUCCESS)
        next_wait = (PFN_vkWaitForFences)next_device(*made, "vkWaitForFences");
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_fence_status(VkDevice device, VkFence fence) {
    VkResult result = next_wait(device, 1, &fence, VK_TRUE, LONGEST_NS);
    return result == VK_TIMEOUT ? VK_NOT_READY : result;
}

static PFN_vkVoidFunction own(const char *name) {
    static const struct { const char *name; void *function; } functions[] = {
        {"vkCreateInstance", create_instance},
        {"vkCreateDevice", create_device},
        {"vkGetFenceStatus", get_fence_status},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i].name)) return (PFN_vkVoidFunction)functions[i].function;
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name) {
    PFN_vkVoidFunction found = own(name);
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_function;
    return found ? found : next_device(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance of, const char *name) {
    PFN_vkVoidFunction found = own(name);
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)instance_function;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)device_function;
    return found || !next_instance ? found : next_instance(of, name);
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(
        VkNegotiateLayerInterface *asked) {
    asked->loaderLayerInterfaceVersion = 2;
    asked->pfnGetInstanceProcAddr = instance_function;
    asked->pfnGetDeviceProcAddr = device_function;
    asked->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
