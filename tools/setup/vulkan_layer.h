// What each layer of Vulkan's loader does: it passes calls on to what comes after it, another layer
// or the driver, except for functions of its own.
//
// The layer includes this and defines what is declared as its part.

#include <stddef.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

struct layer_function {
    const char *name;
    void *function;
};

// The layer's part: its functions, ended by a name that is NULL, and what finds those that come
// after it: with `next_instance` for an instance that was made, with `next_device` for a device.
__attribute__((visibility("hidden"))) extern const struct layer_function layer_functions[];
static void find_of_instance(VkInstance made);
static void find_of_device(VkDevice made);

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
// Of the last instance; those of one driver have the same functions, and so do devices.
static PFN_vkCreateDevice next_create_device;

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
    if (result != VK_SUCCESS) return result;
    next_create_device = (PFN_vkCreateDevice)next_instance(*made, "vkCreateDevice");
    find_of_instance(*made);
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
    if (result == VK_SUCCESS) find_of_device(*made);
    return result;
}

static PFN_vkVoidFunction own(const char *name) {
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)create_device;
    for (const struct layer_function *each = layer_functions; each->name; each++)
        if (!strcmp(name, each->name)) return (PFN_vkVoidFunction)each->function;
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
