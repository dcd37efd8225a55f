// A layer of Vulkan's loader that makes a real driver fail, or seem older than it is.
//
// While the file VK_FAULT_FILE names exists, its first letter says what fails: `l`, every submission
// (the device is lost); `s`, every submission too, for want of memory on the device; `m`, every
// allocation of memory. VK_FAULT_API is the minor version of Vulkan that devices report.
// VK_FAULT_NO_16BIT takes 16-bit storage away from them. VK_FAULT_START ends the process that starts
// the driver.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
// Of the last instance and device; those of one driver have the same functions.
static PFN_vkCreateDevice next_create_device;
static PFN_vkGetPhysicalDeviceProperties next_properties;
static PFN_vkGetPhysicalDeviceProperties2 next_properties_2;
static PFN_vkGetPhysicalDeviceFeatures2 next_features_2;
static PFN_vkQueueSubmit next_submit;
static PFN_vkAllocateMemory next_allocate;

static int fault(void) {
    const char *name = getenv("VK_FAULT_FILE");
    FILE *file = name ? fopen(name, "r") : NULL;
    int letter = file ? fgetc(file) : 0;
    if (file) fclose(file);
    return letter;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
        const VkAllocationCallbacks *allocator, VkInstance *made) {
    if (getenv("VK_FAULT_START")) abort();
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO
            || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance next = (PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance");
    VkResult result = next(info, allocator, made);
#define FIND(name) (PFN_##name)next_instance(*made, #name)
    if (result != VK_SUCCESS) return result;
    next_create_device = FIND(vkCreateDevice);
    next_properties = FIND(vkGetPhysicalDeviceProperties);
    next_properties_2 = FIND(vkGetPhysicalDeviceProperties2);
    next_features_2 = FIND(vkGetPhysicalDeviceFeatures2);
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
    if (result != VK_SUCCESS) return result;
    next_submit = (PFN_vkQueueSubmit)next_device(*made, "vkQueueSubmit");
    next_allocate = (PFN_vkAllocateMemory)next_device(*made, "vkAllocateMemory");
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t count,
        const VkSubmitInfo *submits, VkFence fence) {
    int letter = fault();
    if (letter == 's') return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return letter == 'l' ? VK_ERROR_DEVICE_LOST : next_submit(queue, count, submits, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate_memory(VkDevice device,
        const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *allocator,
        VkDeviceMemory *memory) {
    if (fault() == 'm') return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return next_allocate(device, info, allocator, memory);
}

static void change(VkPhysicalDeviceProperties *properties) {
    const char *minor = getenv("VK_FAULT_API");
    if (minor) properties->apiVersion = VK_MAKE_API_VERSION(0, 1, atoi(minor), 0);
}

static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice device,
        VkPhysicalDeviceProperties *properties) {
    next_properties(device, properties);
    change(properties);
}

static VKAPI_ATTR void VKAPI_CALL get_properties_2(VkPhysicalDevice device,
        VkPhysicalDeviceProperties2 *properties) {
    next_properties_2(device, properties);
    change(&properties->properties);
}

static VKAPI_ATTR void VKAPI_CALL get_features_2(VkPhysicalDevice device,
        VkPhysicalDeviceFeatures2 *features) {
    next_features_2(device, features);
    for (VkBaseOutStructure *each = features->pNext; each; each = each->pNext) {
        int is_it = getenv("VK_FAULT_NO_16BIT") != NULL;
        if (is_it && each->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
            ((VkPhysicalDeviceVulkan11Features *)each)->storageBuffer16BitAccess = VK_FALSE;
        if (is_it && each->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES)
            ((VkPhysicalDevice16BitStorageFeatures *)each)->storageBuffer16BitAccess = VK_FALSE;
    }
}

static PFN_vkVoidFunction own(const char *name) {
    static const struct { const char *name; void *function; } functions[] = {
        {"vkCreateInstance", create_instance},
        {"vkCreateDevice", create_device},
        {"vkQueueSubmit", queue_submit},
        {"vkAllocateMemory", allocate_memory},
        {"vkGetPhysicalDeviceProperties", get_properties},
        {"vkGetPhysicalDeviceProperties2", get_properties_2},
        {"vkGetPhysicalDeviceProperties2KHR", get_properties_2},
        {"vkGetPhysicalDeviceFeatures2", get_features_2},
        {"vkGetPhysicalDeviceFeatures2KHR", get_features_2},
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
